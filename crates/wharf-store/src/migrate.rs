//! The form of the records over the versions of Wharf.
//!
//! Every record carries the schema it was written in, and the key `meta/schema` says which one the
//! whole store has reached. A new version brings older records to its form when it opens the
//! store: record by record, each only if nobody wrote it meanwhile, the mark at last. So it can be
//! interrupted anywhere and simply goes on at the next start.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    error::{StoreError, StoreResult},
    store::Store,
    types::{Compare, Entry, Outcome, Page, Txn},
};

/// Where the store-wide schema is.
pub(crate) const SCHEMA_KEY: &str = "meta/schema";
/// Keys that are the store's own and not records.
pub(crate) const META_PREFIX: &str = "meta/";

/// Records that are read and rewritten at a time.
const PAGE: usize = 100;

/// One step from a schema to the next.
pub(crate) struct Migration {
    /// The schema that a record has afterwards.
    pub(crate) to: u32,
    pub(crate) name: &'static str,
    /// Changes the data of a record of the given kind; most kinds stay as they are.
    pub(crate) apply: fn(kind: &str, data: &mut Value),
}

/// In ascending order of `to`. Schema 1 is the first, so there is nothing to migrate from.
pub(crate) const MIGRATIONS: &[Migration] = &[];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreSchema {
    pub(crate) schema: u32,
    /// The version of Wharf that wrote it.
    pub(crate) writer: String,
}

impl StoreSchema {
    pub(crate) fn decode(entry: &Entry) -> StoreResult<StoreSchema> {
        serde_json::from_slice(&entry.value).map_err(|error| StoreError::Unreadable {
            key: entry.key.clone(),
            reason: error.to_string(),
        })
    }

    fn put(schema: u32) -> StoreResult<Txn> {
        let value = StoreSchema { schema, writer: env!("CARGO_PKG_VERSION").to_owned() };
        let value = serde_json::to_vec(&value)
            .map_err(|source| StoreError::Encode { key: SCHEMA_KEY.to_owned(), source })?;
        Ok(Txn::new().put(SCHEMA_KEY, value))
    }

    /// Refuses what a later version has written.
    pub(crate) fn ensure_known(&self, known: u32) -> StoreResult<()> {
        if self.schema <= known {
            return Ok(());
        }
        Err(StoreError::Newer { found: self.schema, known, writer: self.writer.clone() })
    }
}

/// Refuses a store of a later version; only reads.
pub(crate) async fn ensure_not_newer(store: &Store, known: u32) -> StoreResult<()> {
    match store.get(SCHEMA_KEY).await? {
        Some(entry) => StoreSchema::decode(&entry)?.ensure_known(known),
        None => Ok(()),
    }
}

/// Brings all records to `schema`, and says so in the store.
pub(crate) async fn run(store: &Store, migrations: &[Migration], schema: u32) -> StoreResult<()> {
    loop {
        let (compare, done) = match store.get(SCHEMA_KEY).await? {
            None => (Compare::Absent(SCHEMA_KEY.to_owned()), true),
            Some(entry) => {
                let found = StoreSchema::decode(&entry)?;
                found.ensure_known(schema)?;
                if found.schema == schema {
                    return Ok(());
                }
                (Compare::ModifiedAt(SCHEMA_KEY.to_owned(), entry.modified), false)
            }
        };
        if !done {
            migrate_records(store, migrations, schema).await?;
        }
        // Refused: another server was faster; look at what it wrote.
        if let Outcome::Committed(_) = store.commit(StoreSchema::put(schema)?.when(compare)).await?
        {
            return Ok(());
        }
    }
}

async fn migrate_records(store: &Store, migrations: &[Migration], schema: u32) -> StoreResult<()> {
    let mut next = Some(Page::first(PAGE));
    while let Some(page) = next {
        let listing = store.list_raw("", page.clone()).await?;
        next = page.next(&listing);
        // What is bound to a lease is rewritten by its holder, and soon gone with it.
        for raw in listing.entries.into_iter().filter(|raw| !raw.leased) {
            migrate_record(store, raw.entry, migrations, schema).await?;
        }
    }
    Ok(())
}

/// Rewrites one record, again if somebody else wrote it meanwhile.
async fn migrate_record(
    store: &Store,
    mut entry: Entry,
    migrations: &[Migration],
    schema: u32,
) -> StoreResult<()> {
    loop {
        let Some(value) = migrated(&entry, migrations, schema) else { return Ok(()) };
        let unchanged = Compare::ModifiedAt(entry.key.clone(), entry.modified);
        let txn = Txn::new().when(unchanged).put(entry.key.clone(), value);
        if let Outcome::Committed(_) = store.commit(txn).await? {
            return Ok(());
        }
        match store.get(&entry.key).await? {
            Some(newer) => entry = newer,
            None => return Ok(()),
        }
    }
}

/// The record in its new form; `None` if it has it, or is no record.
///
/// A record that cannot be read stays as it is: it is listed as unreadable, never dropped.
fn migrated(entry: &Entry, migrations: &[Migration], schema: u32) -> Option<Vec<u8>> {
    if entry.key.starts_with(META_PREFIX) {
        return None;
    }
    let mut record: Value = serde_json::from_slice(&entry.value).ok()?;
    let found = u32::try_from(record.get("schema")?.as_u64()?).ok()?;
    if found >= schema {
        return None;
    }
    let kind = entry.key.split('/').next().unwrap_or_default();
    let data = record.get_mut("data")?;
    for migration in migrations.iter().filter(|step| step.to > found && step.to <= schema) {
        tracing::info!(key = entry.key, migration = migration.name, "migrating a record");
        (migration.apply)(kind, data);
    }
    *record.get_mut("schema")? = Value::from(schema);
    // The event belongs to the write that it was given with; with this one it would come again.
    record.as_object_mut()?.remove("event");
    serde_json::to_vec(&record).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{StoreLocation, StoreOptions};

    const STEPS: &[Migration] = &[
        Migration {
            to: 2,
            name: "size gets its unit",
            apply: |kind, data| {
                if kind == "disk" {
                    data["size_bytes"] = data["size"].take();
                }
            },
        },
        Migration {
            to: 3,
            name: "everything gets a note",
            apply: |_, data| data["note"] = json!(""),
        },
    ];

    async fn open(dir: &std::path::Path) -> Store {
        let location = StoreLocation::Embedded { data_dir: dir.to_owned() };
        Store::open(&StoreOptions { location }).await.unwrap()
    }

    async fn put(store: &Store, key: &str, value: &Value) {
        let outcome = store.commit(Txn::new().put(key, value.to_string())).await.unwrap();
        assert!(matches!(outcome, Outcome::Committed(_)));
    }

    async fn read(store: &Store, key: &str) -> Value {
        serde_json::from_slice(&store.get(key).await.unwrap().unwrap().value).unwrap()
    }

    fn record(schema: u32, data: &Value) -> Value {
        json!({ "schema": schema, "at": "2026-01-01T00:00:00Z", "data": data })
    }

    #[tokio::test]
    async fn a_new_store_names_its_schema_and_writer() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        let mark = read(&store, SCHEMA_KEY).await;
        assert_eq!(mark, json!({ "schema": 1, "writer": env!("CARGO_PKG_VERSION") }));
    }

    #[tokio::test]
    async fn old_records_go_through_all_steps_they_have_not_seen() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        for i in 0..250 {
            put(&store, &format!("disk/{i:03}"), &record(1, &json!({ "size": i }))).await;
        }
        put(&store, "disk/half", &record(2, &json!({ "size_bytes": 7 }))).await;
        put(&store, "user/ann", &record(1, &json!({ "size": 1 }))).await;
        let broken = store.commit(Txn::new().put("user/broken", "{")).await.unwrap();

        run(&store, STEPS, 3).await.unwrap();

        assert_eq!(
            read(&store, "disk/249").await,
            record(3, &json!({ "size": null, "size_bytes": 249, "note": "" }))
        );
        assert_eq!(
            read(&store, "disk/half").await,
            record(3, &json!({ "size_bytes": 7, "note": "" }))
        );
        assert_eq!(read(&store, "user/ann").await, record(3, &json!({ "size": 1, "note": "" })));
        let kept = store.get("user/broken").await.unwrap().unwrap();
        assert_eq!(Outcome::Committed(kept.modified), broken);
        assert_eq!(read(&store, SCHEMA_KEY).await["schema"], json!(3));

        let revision = store.revision().await.unwrap();
        run(&store, STEPS, 3).await.unwrap();
        assert_eq!(store.revision().await.unwrap(), revision, "a second run writes nothing");
    }

    #[tokio::test]
    async fn an_event_is_not_published_again_by_a_migration() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        let mut created = record(1, &json!({ "size": 1 }));
        created["event"] = json!("disk.created");
        put(&store, "disk/a", &created).await;
        run(&store, STEPS, 3).await.unwrap();
        let migrated = read(&store, "disk/a").await;
        assert_eq!((migrated["schema"].as_u64(), migrated.get("event")), (Some(3), None));
    }

    #[tokio::test]
    async fn an_interrupted_migration_goes_on_where_it_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        put(&store, "disk/a", &record(3, &json!({ "size_bytes": 1, "note": "mine" }))).await;
        put(&store, "disk/b", &record(1, &json!({ "size": 2 }))).await;
        run(&store, STEPS, 3).await.unwrap();
        assert_eq!(read(&store, "disk/a").await["data"]["note"], json!("mine"));
        assert_eq!(read(&store, "disk/b").await["data"]["size_bytes"], json!(2));
    }

    #[tokio::test]
    async fn a_newer_store_is_refused_by_name_and_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        put(&store, SCHEMA_KEY, &json!({ "schema": 99, "writer": "7.3.1" })).await;
        let lease = store.grant_lease(std::time::Duration::from_secs(60)).await.unwrap();
        let outcome = store.commit(Txn::new().put_leased("member/a", "x", lease)).await.unwrap();
        let Outcome::Committed(revision) = outcome else { panic!("refused") };
        store.close().await;

        let location = StoreLocation::Embedded { data_dir: dir.path().to_owned() };
        let refused =
            Store::open(&StoreOptions { location: location.clone() }).await.err().unwrap();
        assert!(
            matches!(&refused, StoreError::Newer { found: 99, known: 1, writer } if writer == "7.3.1"),
            "{refused}"
        );
        let store = Store::attach(&location).await.unwrap();
        assert_eq!(store.revision().await.unwrap(), revision);
    }
}
