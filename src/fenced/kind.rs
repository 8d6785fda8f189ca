//! Fenced objects as a kind of record: what fsck knows of them. They do not expire, so the sweeper has nothing to do.

use super::format::{self, Unreadable};
use crate::{
    Decoded, ErrorKind, Key, Result,
    kind::{Context, Damage, Declaration, Entry, Finding, Kind, Object, Rules, Stop, Verdict},
    storage::Backend,
};
use async_trait::async_trait;
use std::sync::Arc;

pub(crate) static DECLARATION: Declaration = Declaration {
    name: "fenced",
    folders: format::folders,
    is_record: |below| Key::from_name(below).is_ok(),
    shared: Rules { settings: &[], may_change: |_, _| Ok(()), stop: |_, _| Stop::default() },
};

#[derive(Debug)]
pub(crate) struct FencedKind(pub(crate) Arc<Backend>);

#[async_trait]
impl Kind for FencedKind {
    fn declaration(&self) -> &'static Declaration {
        &DECLARATION
    }

    async fn settle(&self, _: &Entry<'_>, _: &Context) -> Result<Verdict> {
        Ok(Verdict::Kept)
    }

    async fn check(&self, object: &Object<'_>, _: &Context) -> Result<Option<Finding>> {
        let name = object.name;
        let Some((last, decoded)) =
            name.as_str().strip_prefix(&object.folder.path).and_then(|last| Some((last, Key::from_name(last).ok()?)))
        else {
            return Ok(Some(Finding::unknown(name)));
        };
        let unreadable = |why: String| {
            let advice = "move it away, or restore it from a backup: its fence is lost with it";
            Ok(Some(Finding::new(Damage::Unreadable, name, why).advise(advice)))
        };
        let fetched = match self.0.get(name).await {
            Ok(Some(fetched)) => fetched,
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Corrupt => return unreadable(error.to_string()),
            Err(error) => return Err(error),
        };
        match format::decode(fetched.body) {
            Ok((path, _)) if path.name() == last => Ok(None),
            Ok((path, _)) => unreadable(format!("it is that of another path, {path}")),
            Err(Unreadable::Later(format)) => {
                let later = Finding::new(Damage::LaterFormat, name, format!("it has format {format}"));
                Ok(Some(match decoded {
                    Decoded::Key(path) => later.key(&path).harmless(),
                    Decoded::Hashed => later.harmless(),
                }))
            }
            Err(Unreadable::Damaged(why)) => unreadable(why),
        }
    }
}
