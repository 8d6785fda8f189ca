//! put: an object in the bucket that refuses a fence older than one that it was written with.

use crate::{
    config::Config,
    exit::{Failure, LOST, Outcome},
    output,
    target::Embedded,
};
use clap::Args;
use leasehold::{Fence, Key, fenced::Put as Outcomes};
use std::{io::Read, path::PathBuf};

#[derive(Debug, Args)]
pub(crate) struct Put {
    /// The path of the object: any text
    path: Key,
    /// The fence of the lease under which it is written
    #[arg(long, env = "LEASEHOLD_FENCE", value_name = "FENCE")]
    fence: u64,
    /// The file to write [default: what comes on standard input]
    file: Option<PathBuf>,
}

impl Put {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        let fence = Fence::new(self.fence).map_err(|error| Failure::usage(error.to_string()))?;
        let bytes = self.bytes()?;
        let embedded = Embedded::open(config).await?;
        let files = embedded.store.fenced().namespace(config.namespace.value.clone())?;
        match files.put(self.path.clone(), bytes, fence).await? {
            Outcomes::Written(_) => {
                tracing::info!(path = %self.path, %fence, "written");
                Ok(0)
            }
            Outcomes::Refused(refused) => {
                output::complain(format_args!(
                    "{} was not written: {refused}; the lease is lost, so stop what it protects",
                    self.path
                ));
                Ok(LOST)
            }
            Outcomes::Unknown(error) => Err(error.into()),
        }
    }

    fn bytes(&self) -> Result<Vec<u8>, Failure> {
        let read = match &self.file {
            Some(file) => std::fs::read(file),
            None => {
                let mut bytes = Vec::new();
                std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
            }
        };
        read.map_err(|error| Failure::failed(format!("what is to be written cannot be read: {error}")))
    }
}
