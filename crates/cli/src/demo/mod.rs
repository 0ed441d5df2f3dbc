//! demo
use crate::failure::Outcome;
#[derive(clap::Args)]
pub(crate) struct Demo {}
#[derive(clap::Args)]
pub(crate) struct DemoJob {}
impl Demo {
    pub(crate) fn run(&self) -> Outcome {
        Ok(())
    }
}
impl DemoJob {
    pub(crate) fn run(&self) -> Outcome {
        Ok(())
    }
}
