//! Streams: appending, reading, groups, trimming.

mod append;
mod budget;
mod groups;
mod reading;
mod trimming;

use crate::processes::World;
use leasehold::{
    Store,
    store::Probing,
    stream::{Batch, Draft, Position, Reader, Retention, Stream, StreamSettings},
    testkit::{Dates, TestClock},
};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, path::Path,
};
use std::{sync::Arc, time::Duration};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

pub(crate) const LOG: &str = "default/stream/events/000/log/";

/// Text messages, one for each.
pub(crate) fn drafts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<Draft> {
    texts.into_iter().map(|text| Draft::new("events.test", text.to_owned())).collect()
}

pub(crate) async fn publish(stream: &Stream, text: &str) -> u64 {
    stream.publish("events.test", text.to_owned()).await.unwrap().offset
}

/// Everything up to the end of the log, as text.
pub(crate) async fn rest(reader: &mut Reader) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some(batch) = reader.next().await.unwrap() {
        texts.extend(texts_of(&batch));
    }
    texts
}

pub(crate) async fn everything(stream: &Stream) -> Vec<String> {
    rest(&mut stream.read(Position::Earliest).await.unwrap()).await
}

pub(crate) fn texts_of(batch: &Batch) -> Vec<String> {
    batch.messages.iter().map(|message| String::from_utf8(message.payload.to_vec()).unwrap()).collect()
}

/// Keeps an hour.
pub(crate) fn an_hour() -> StreamSettings {
    StreamSettings::default().retention(Retention::of_age(HOUR))
}

pub(crate) fn segments(world: &World) -> Vec<String> {
    world
        .objects
        .names()
        .into_iter()
        .filter_map(|name| Some(name.strip_prefix(LOG)?.trim_start_matches('0').to_owned()))
        .collect()
}

/// A store whose answers say what time it is, for a process whose own clocks may stand still.
#[derive(Debug)]
struct Dated {
    objects: leasehold::testkit::FaultStore,
    dates: Dates,
}

impl std::fmt::Display for Dated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("dated")
    }
}

impl Dated {
    async fn dated<T>(&self, run: impl Future<Output = object_store::Result<T>>) -> object_store::Result<T> {
        let asked = self.dates.asked();
        let done = run.await;
        if let Some(asked) = asked {
            self.dates.answered(self.objects.date(), asked);
        }
        done
    }
}

#[async_trait::async_trait]
impl ObjectStore for Dated {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> object_store::Result<PutResult> {
        self.dated(self.objects.put_opts(at, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.dated(self.objects.get_opts(at, options)).await
    }

    fn delete_stream(
        &self,
        at: futures_util::stream::BoxStream<'static, object_store::Result<Path>>,
    ) -> futures_util::stream::BoxStream<'static, object_store::Result<Path>> {
        self.objects.delete_stream(at)
    }

    fn list(
        &self,
        prefix: Option<&Path>,
    ) -> futures_util::stream::BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

/// A process whose clocks are its own, on a store whose answers are dated.
pub(crate) async fn dated_process(world: &World, clock: &TestClock) -> Store {
    let dates = Dates::new();
    let objects = Dated { objects: world.objects.clone(), dates: dates.clone() };
    let builder = Store::builder().object_store(Arc::new(objects)).dated_answers(dates).lists_in_order();
    builder.probing(Probing::Never).clock(Arc::new(clock.clone())).open().await.unwrap()
}
