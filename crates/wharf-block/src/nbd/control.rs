//! What our clients and our server say to each other beyond the protocol: an option of our own number
//! with a JSON body, in the same handshake.

use serde::{Deserialize, Serialize};

use super::ImageName;

/// How many images one answer lists; the rest is asked for with `after`.
pub const LIST_PAGE: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Who the client is. It has to come before the export is opened, and only who says it may write.
    Join {
        /// One run of one client. A new session of the same generation ends the older one.
        session: String,
        /// Which of the session's connections. A new one of the same slot ends the older one.
        slot: u32,
        read_only: bool,
    },
    /// Makes an image full of zeros. One that is there with this size is as good.
    Create {
        image: ImageName,
        size: u64,
    },
    /// Notes whose an image is, if it is nobody's. The answer says whose it is.
    Own {
        image: ImageName,
        owner: String,
    },
    /// Shuts everybody out and removes the image. Its epoch stays, above all that were let in.
    Delete {
        image: ImageName,
        generation: u64,
    },
    /// Makes the image larger; smaller is refused.
    Grow {
        image: ImageName,
        size: u64,
        generation: u64,
    },
    /// The images in the order of their names.
    List {
        after: Option<ImageName>,
    },
    Epoch {
        image: ImageName,
    },
    /// Shuts out everybody below the generation. When it is answered they are gone, and so is
    /// everything that they had under way.
    Fence {
        image: ImageName,
        generation: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    Joined {
        /// See [`Ask::Join`]: what was not flushed is lost when this changes.
        boot: String,
    },
    Image(ImageInfo),
    Images {
        images: Vec<ImageInfo>,
        more: bool,
    },
    Deleted,
    Failed(Failure),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    pub image: ImageName,
    pub size: u64,
    /// What it takes of the server's disk.
    pub allocated: u64,
    pub epoch: u64,
    /// Whose it is, if somebody has said so.
    #[serde(default)]
    pub owner: Option<String>,
    /// How many connections it has at this moment.
    pub clients: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// Others have been let in with a higher generation. It stays so.
    Fenced,
    /// There is no such image.
    Missing,
    /// It is there, and different.
    Exists,
    Invalid,
    /// Those who have to go first have something under way that does not end. Asking again helps.
    Waiting,
    /// The server's disk, or the server itself.
    Failed,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn missing(image: &ImageName) -> Self {
        Self::new(Code::Missing, format!("there is no image {image}"))
    }

    pub(crate) fn fenced(image: &ImageName, generation: u64, epoch: u64) -> Self {
        Self::new(
            Code::Fenced,
            format!(
                "generation {generation} of {image} is shut out: generation {epoch} was let in"
            ),
        )
    }

    pub(crate) fn disk(what: &str, error: &std::io::Error) -> Self {
        Self::new(Code::Failed, format!("{what}: {error}"))
    }
}
