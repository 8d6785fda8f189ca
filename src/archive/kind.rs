//! The archive as a kind of record: only so that its folder is known.

use super::layout;
use crate::{
    Result,
    kind::{Context, Declaration, Entry, Finding, Kind, Object, Rules, SharedSettings, Stop, Verdict},
};
use async_trait::async_trait;

pub(crate) static DECLARATION: Declaration = Declaration {
    name: "archive",
    folders: layout::folders,
    is_record: |_| false,
    shared: Rules { settings: &[], may_change, stop },
};

fn may_change(_: &SharedSettings, _: &SharedSettings) -> Result<()> {
    Ok(())
}

fn stop(_: &SharedSettings, _: &SharedSettings) -> Stop {
    Stop::default()
}

#[derive(Debug)]
pub(crate) struct ArchiveKind;

#[async_trait]
impl Kind for ArchiveKind {
    fn declaration(&self) -> &'static Declaration {
        &DECLARATION
    }

    async fn settle(&self, _: &Entry<'_>, _: &Context) -> Result<Verdict> {
        Ok(Verdict::Kept)
    }

    async fn check(&self, _: &Object<'_>, _: &Context) -> Result<Option<Finding>> {
        Ok(None)
    }
}
