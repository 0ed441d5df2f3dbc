//! Draining to several targets: a stripe set over directories, in every order.

use crate::drain::{clean, drain};
use crate::raw::{World, pattern};
use forebay_backend::{Backend, Stripes};
use forebay_model::{Bytes, FileId};
use forebay_server::Draining;
use forebay_wire::{At, DrainCall, Request};
use std::sync::Arc;
use std::time::Duration;

const TARGETS: usize = 4;
const FILES: u64 = 6;
/// More than a stripe of a mebibyte for each target, and not a whole number of them.
const LEN: usize = (TARGETS << 20) + 12_345;
const PIECE: usize = 47_008;

#[test]
fn every_order_brings_the_same_bytes_to_all_targets() {
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
        let begin = DrainCall::Begin { file: None, order: Some(order.to_owned()), last: false };
        control.call(Request::Drain(begin)).unwrap();
        // Strided by six writers, each with a file that every target has a part of.
        let tokens: Vec<_> =
            (0..FILES).map(|file| control.create(FileId::ROOT, &format!("f{file}"), 0o644)).collect();
        for at in (0..LEN).step_by(PIECE) {
            for (file, token) in tokens.iter().enumerate() {
                let whole = pattern(file as u64, LEN);
                let end = LEN.min(at + PIECE);
                data.write(*token, At::Offset(at as u64), &whole[at..end]).unwrap();
            }
        }
        let drained = drain(&mut control, None);
        clean(&drained);
        assert_eq!(drained.status.written, FILES * LEN as u64, "{order}: every byte once: {drained:?}");
        for target in &drained.status.targets {
            assert!(target.written >= FILES << 20, "{order}: {target:?}");
        }
        for file in 0..FILES {
            let name = forebay_model::Name::new(format!("f{file}")).unwrap();
            let mut back = vec![0; LEN + 1];
            let count = stripes.open(std::slice::from_ref(&name)).unwrap().read_at(0, &mut back).unwrap();
            assert!(count == LEN && back[..LEN] == pattern(file, LEN), "{order}: file {file}");
        }
    }
}
