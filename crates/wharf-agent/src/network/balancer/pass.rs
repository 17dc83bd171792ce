//! Passing bytes on, in both directions, as long as either side speaks.
//!
//! Most connections of a node are watches that are silent most of the time. So a direction has memory
//! only while bytes are under way: ten thousand silent connections would hold 160 MB otherwise.

use std::io;

use tokio::{
    io::AsyncWriteExt,
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
};

/// What is read at a time: a large answer in few steps, a small one without waste.
const PIECE: usize = 16 << 10;

/// Returns when both sides have ended, or with the first error of either.
pub async fn between(client: &mut TcpStream, server: &mut TcpStream) -> io::Result<()> {
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::try_join!(pass(from_client, to_server), pass(from_server, to_client))?;
    Ok(())
}

/// Until `from` has said everything, which is then told to whom it was for.
async fn pass(from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> io::Result<()> {
    loop {
        from.readable().await?;
        let mut piece = Vec::with_capacity(PIECE);
        loop {
            piece.clear();
            match from.try_read_buf(&mut piece) {
                Ok(0) => return to.shutdown().await,
                Ok(_) => to.write_all(&piece).await?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::{io::AsyncReadExt, net::TcpListener};

    use super::*;

    /// Both ends of a connection.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        (near.unwrap(), far.unwrap().0)
    }

    #[tokio::test]
    async fn more_than_sockets_hold_arrives_whole_also_after_the_other_side_has_ended() {
        let ((mut client, mut before), (mut behind, mut server)) = (pair().await, pair().await);
        let passing = tokio::spawn(async move { between(&mut before, &mut behind).await });
        let sent: Vec<u8> = (0..20_000_000_u32).map(|number| (number % 251) as u8).collect();
        let expected = sent.clone();
        client.write_all(b"give").await.unwrap();
        client.shutdown().await.unwrap();
        let mut asked = Vec::new();
        server.read_to_end(&mut asked).await.unwrap();
        assert_eq!(asked, b"give");
        let answering = tokio::spawn(async move { server.write_all(&sent).await });
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        answering.await.unwrap().unwrap();
        assert!(answer == expected, "{} bytes came", answer.len());
        assert!(passing.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn a_connection_that_is_torn_down_ends_both() {
        let ((client, mut before), (mut behind, mut server)) = (pair().await, pair().await);
        let passing = tokio::spawn(async move { between(&mut before, &mut behind).await });
        client.set_zero_linger().unwrap();
        drop(client);
        assert!(passing.await.unwrap().is_err());
        let mut rest = Vec::new();
        assert_eq!(server.read_to_end(&mut rest).await.unwrap_or_default(), 0);
    }
}
