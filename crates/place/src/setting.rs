//! The settings from the command line.

use forebay_policy::place::{SETTING, Setting, Topology};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The settings, and the topology made from them.
pub(crate) struct Ready {
    pub(crate) setting: Setting,
    pub(crate) topology: Arc<Topology>,
}

/// The settings of this process, read once; `None` if placement is disabled.
pub(crate) fn ready() -> Option<&'static Ready> {
    static READY: OnceLock<Option<Ready>> = OnceLock::new();
    READY.get_or_init(read).as_ref()
}

fn read() -> Option<Ready> {
    let path = std::env::var_os(SETTING)?;
    let bytes = match std::fs::read(PathBuf::from(&path)) {
        Ok(bytes) => bytes,
        Err(error) => {
            crate::report::early(&format!("cannot read {}: {error}", path.to_string_lossy()));
            return None;
        }
    };
    let setting = postcard::from_bytes::<Setting>(&bytes).ok();
    let topology = setting.as_ref().and_then(|setting| Topology::new(setting.description.clone()).ok());
    let Some((setting, topology)) = setting.zip(topology) else {
        let text = "was not written by this version: run \"forebay place exec\" again";
        crate::report::early(&format!("{} {text}", path.to_string_lossy()));
        return None;
    };
    Some(Ready { setting, topology: Arc::new(topology) })
}

/// Bytes as a path.
pub(crate) fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes.to_vec()))
}
