//! Random operations over real sockets with server restarts, checked against a model in memory.

use super::world::{By, World, pattern};
use forebay_client::{Client, File, OpenOptions, waiting_here};
use forebay_model::ErrorKind;
use forebay_testkit::{Rng, Seeded};
use forebay_wire::RenameMode;
use std::collections::BTreeMap;
use std::future::poll_fn;

const STEPS: usize = 1200;
const LARGEST: usize = 3 << 20;

/// The expected state: names of files, and their bytes. A file stays while it is open, even without a name.
#[derive(Default)]
struct Model {
    names: BTreeMap<String, usize>,
    files: Vec<Vec<u8>>,
}

struct Driver {
    world: World,
    clients: Vec<Client>,
    open: Vec<(File, usize)>,
    model: Model,
    rng: Rng,
}

impl Driver {
    async fn step(&mut self) {
        let name = format!("/n{}", self.rng.below(6));
        let client = self.clients[self.rng.index(2)].clone();
        match self.rng.below(20) {
            0 => self.world.restart().await,
            1..4 => self.open(&client, &name).await,
            4 => self.unlink(&client, &name).await,
            5 => self.rename(&client, &name).await,
            6 if !self.open.is_empty() => {
                let (file, _) = self.open.swap_remove(self.rng.index(self.open.len()));
                file.close().await.unwrap();
            }
            _ if !self.open.is_empty() => self.change().await,
            _ => {}
        }
    }

    async fn open(&mut self, client: &Client, name: &str) {
        if self.open.len() >= 8 {
            return;
        }
        let create = OpenOptions { truncate: false, ..OpenOptions::CREATE };
        let options =
            [OpenOptions::WRITE, create, OpenOptions::CREATE, OpenOptions::CREATE_NEW][self.rng.index(4)];
        let known = self.model.names.get(name).copied();
        match (client.open(name, options).await, known) {
            (Ok(file), Some(index)) => {
                assert!(!options.create_new, "{name} was there");
                if options.truncate {
                    self.model.files[index].clear();
                }
                self.open.push((file, index));
            }
            (Ok(file), None) => {
                assert!(options.create || options.create_new, "{name} was not there");
                self.model.names.insert(name.to_owned(), self.model.files.len());
                self.open.push((file, self.model.files.len()));
                self.model.files.push(Vec::new());
            }
            (Err(error), Some(_)) => {
                assert_eq!((error.kind(), options.create_new), (ErrorKind::Exists, true));
            }
            (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
        }
    }

    async fn unlink(&mut self, client: &Client, name: &str) {
        match (client.unlink(name).await, self.model.names.remove(name)) {
            (Ok(()), Some(_)) => {}
            (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
            (done, known) => panic!("unlink {name}: {done:?} where the model has {known:?}"),
        }
    }

    async fn rename(&mut self, client: &Client, name: &str) {
        let to = format!("/n{}", self.rng.below(6));
        let done = client.rename(name, &to, RenameMode::Replace).await;
        match (done, self.model.names.get(name).copied()) {
            (Ok(()), Some(index)) => {
                self.model.names.remove(name);
                self.model.names.insert(to, index);
            }
            (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
            (done, known) => panic!("rename {name} to {to}: {done:?} where the model has {known:?}"),
        }
    }

    async fn change(&mut self) {
        let (file, index) = &self.open[self.rng.index(self.open.len())];
        let bytes = &mut self.model.files[*index];
        let offset = self.rng.size(LARGEST as u64) as usize;
        match self.rng.below(8) {
            0 => {
                file.truncate(offset as u64).await.unwrap();
                bytes.resize(offset, 0);
            }
            1 => {
                let len = 1 + self.rng.size(LARGEST as u64) as usize;
                file.punch(offset as u64, len as u64).await.unwrap();
                let end = bytes.len().min(offset + len);
                bytes[offset.min(end)..end].fill(0);
            }
            2 if bytes.len() < LARGEST => {
                let data = pattern(self.rng.next(), 1 + self.rng.size(100_000) as usize);
                assert_eq!(file.append(&data).await.unwrap(), bytes.len() as u64);
                bytes.extend(data);
            }
            3 => file.sync().await.unwrap(),
            4..6 => {
                let mut back = vec![0xaa; self.rng.size(LARGEST as u64) as usize];
                let count = file.pread(offset as u64, &mut back).await.unwrap();
                let start = offset.min(bytes.len());
                let expected = &bytes[start..bytes.len().min(start + back.len())];
                assert!(&back[..count] == expected, "read of {} at {offset} gave {count}", back.len());
            }
            _ => {
                let data = pattern(self.rng.next(), self.rng.size((LARGEST - offset) as u64) as usize);
                file.pwrite(offset as u64, &data).await.unwrap();
                if !data.is_empty() && bytes.len() < offset + data.len() {
                    bytes.resize(offset + data.len(), 0);
                }
                if !data.is_empty() {
                    bytes[offset..offset + data.len()].copy_from_slice(&data);
                }
            }
        }
        assert_eq!(file.stat().await.unwrap().size, bytes.len() as u64);
    }

    async fn finish(self) {
        for (file, index) in &self.open {
            self.compare(file, &self.model.files[*index]).await;
        }
        for (name, index) in &self.model.names {
            let file = self.clients[0].open(name, OpenOptions::READ).await.unwrap();
            self.compare(&file, &self.model.files[*index]).await;
        }
    }

    async fn compare(&self, file: &File, bytes: &[u8]) {
        let mut back = vec![0; bytes.len() + 1];
        assert_eq!(file.pread(0, &mut back).await.unwrap(), bytes.len());
        assert!(&back[..bytes.len()] == bytes);
    }
}

async fn play(part: u64, steps: usize) {
    let seeded = Seeded::new();
    let world = World::new(256);
    let clients = vec![world.client(By::Unix).await, world.client(By::Tcp).await];
    let mut driver =
        Driver { world, clients, open: Vec::new(), model: Model::default(), rng: seeded.rng(part) };
    for _ in 0..steps {
        driver.step().await;
    }
    driver.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_with_restarts_match_a_model() {
    play(0, STEPS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_by_a_queue_with_restarts_match_a_model() {
    let mut play = Box::pin(play(1, STEPS / 2));
    poll_fn(|context| waiting_here(|| play.as_mut().poll(context))).await;
}
