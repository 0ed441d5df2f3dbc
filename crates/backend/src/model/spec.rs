//! Parsing of the model's parameters.

use forebay_model::{Error, ErrorKind, Result};
use forebay_policy::device::Device;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

const DEVICES: &str = include_str!("../../../../scenarios/devices.toml");

pub(super) struct Spec {
    pub(super) device: Device,
    pub(super) faults: Option<u64>,
    pub(super) shared: Option<PathBuf>,
}

/// A device of `scenarios/devices.toml`.
pub fn device(name: &str) -> Result<Device> {
    let mut devices: BTreeMap<String, Device> = toml::from_str(DEVICES)
        .map_err(|error| Error::new(ErrorKind::Invalid, format!("scenarios/devices.toml: {error}")))?;
    devices.remove(name).ok_or_else(|| {
        let known: Vec<&str> = devices.keys().map(String::as_str).collect();
        let text = format!("unknown modelled device \"{name}\": choose {}", known.join(" or "));
        Error::new(ErrorKind::Invalid, text)
    })
}

impl FromStr for Spec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Spec> {
        let mut words = text.split(',');
        let mut spec = Spec { device: device(words.next().unwrap_or_default())?, faults: None, shared: None };
        let (mut slower, mut grain) = (1.0, 1.0);
        for word in words {
            let wrong = |why: &str| {
                let text = format!(
                    "\"{word}\" of a modelled back end {why}: use slower=N, grain=N, queue=N, faults=N or shared=DIR"
                );
                Error::new(ErrorKind::Invalid, text)
            };
            let (key, value) = word.split_once('=').ok_or_else(|| wrong("has no value"))?;
            match key {
                "slower" | "grain" => {
                    let times = value.parse::<f64>().ok().filter(|times| (1e-3..=1e6).contains(times));
                    let times = times.ok_or_else(|| wrong("needs a number from 0.001 to 1000000"))?;
                    *(if key == "slower" { &mut slower } else { &mut grain }) = times;
                }
                "faults" => {
                    let every = value.parse::<u64>().ok().filter(|&every| every > 0);
                    spec.faults = Some(every.ok_or_else(|| wrong("needs a number of at least 1"))?);
                }
                "queue" => {
                    let queue = value.parse::<usize>().ok().filter(|queue| (1..=4096).contains(queue));
                    spec.device.queue = queue.ok_or_else(|| wrong("needs a number from 1 to 4096"))?;
                }
                "shared" if !value.is_empty() => spec.shared = Some(PathBuf::from(value)),
                _ => return Err(wrong("is unknown")),
            }
        }
        spec.device = spec.device.grain(grain).slower(slower);
        Ok(spec)
    }
}
