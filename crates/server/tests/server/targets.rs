//! Draining to several targets: a stripe set over directories, in every order.

use crate::drain::{clean, drain, drain_with};
use crate::raw::{World, pattern};
use forebay_backend::{Backend, Stripes};
use forebay_model::{Bytes, FileId};
use forebay_server::Draining;
use forebay_wire::{At, DrainCall};
use std::sync::Arc;
use std::time::Duration;

const TARGETS: usize = 4;
const FILES: u64 = 6;
/// Several stripes of 1 MiB, and not a whole number of them.
const LEN: usize = (TARGETS << 20) + 12_345;
const PIECE: usize = 47_008;

#[test]
fn every_drain_order_writes_the_same_bytes_to_all_targets() {
    for order in ["arrival", "offset", "target", "trio"] {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<String> =
            (0..TARGETS).map(|number| dir.path().join(number.to_string()).display().to_string()).collect();
        paths.iter().for_each(|path| std::fs::create_dir(path).unwrap());
        let stripes = Arc::new(Stripes::open(paths.iter().map(String::as_str)).unwrap());
        let draining = Draining { age: Duration::from_secs(600), threshold: 90, ..Draining::default() };
        let world = World::before_with(stripes.clone(), |config| {
            config.drain = draining;
            config.capacity = Bytes::mib(64);
        });
        let (mut control, mut data) = (world.control(), world.data());
        // Six writers take turns, each with a file of its own.
        let tokens: Vec<_> =
            (0..FILES).map(|file| control.create(FileId::ROOT, &format!("f{file}"), 0o644)).collect();
        for at in (0..LEN).step_by(PIECE) {
            for (file, token) in tokens.iter().enumerate() {
                let whole = pattern(file as u64, LEN);
                let end = LEN.min(at + PIECE);
                data.write(*token, At::Offset(at as u64), &whole[at..end]).unwrap();
            }
        }
        let begin = DrainCall::Begin { file: None, order: Some(order.to_owned()), last: false };
        let drained = drain_with(&mut control, begin);
        clean(&drained);
        assert_eq!(drained.status.written, FILES * LEN as u64, "{order}: every byte once: {drained:?}");
        for target in &drained.status.targets {
            let files = target.written / LEN as u64;
            assert!((1..=2).contains(&files), "{order}: six files on four targets: {target:?}");
        }
        for file in 0..FILES {
            let name = forebay_model::Name::new(format!("f{file}")).unwrap();
            let mut back = vec![0; LEN + 1];
            let count = stripes.open(std::slice::from_ref(&name)).unwrap().read_at(0, &mut back).unwrap();
            assert!(count == LEN && back[..LEN] == pattern(file, LEN), "{order}: file {file}");
        }
    }
}

/// The files of each job are spread evenly over the targets it may use, whatever other jobs do; a large file is striped
/// over several targets.
#[test]
fn files_of_a_job_are_spread_over_all_targets() {
    for modelled in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<String> =
            (0..TARGETS).map(|number| dir.path().join(number.to_string()).display().to_string()).collect();
        paths.iter().for_each(|path| std::fs::create_dir(path).unwrap());
        let kind = if modelled { "model:ost,slower=0.001:" } else { "" };
        let backend = forebay_backend::open(&format!("{kind}stripes:{}", paths.join(","))).unwrap();
        let draining = Draining { age: Duration::from_secs(600), threshold: 90, ..Draining::default() };
        let world = World::before_with(backend.clone(), |config| {
            config.drain = draining;
            config.capacity = Bytes::mib(256);
        });
        let (mut control, mut data) = (world.control(), world.data());
        for file in 0..2 * TARGETS {
            let token = control.create(FileId::ROOT, &format!("f{file}"), 0o644);
            data.write(token, At::Offset(0), &pattern(file as u64, PIECE)).unwrap();
        }
        // Only its ends are written.
        let token = control.create(FileId::ROOT, "large", 0o644);
        for at in [0, (TARGETS as u64 - 1) << 26] {
            data.write(token, At::Offset(at), b"x").unwrap();
        }
        clean(&drain(&mut control, None));
        let targets_of = |name: String| {
            let name = forebay_model::Name::new(name).unwrap();
            backend.layout(std::slice::from_ref(&name)).unwrap().targets
        };
        let mut counts = [0; TARGETS];
        for file in 0..2 * TARGETS {
            let targets = targets_of(format!("f{file}"));
            assert_eq!(targets.len(), 1, "{targets:?}");
            counts[targets[0] as usize] += 1;
        }
        assert_eq!(counts, [2; TARGETS]);
        let mut large = targets_of("large".to_owned());
        large.sort_unstable();
        assert_eq!(large, [0, 1, 2, 3]);
    }
}
