//! What holds of jobs when processes die, pause and come back, when answers are lost, late or given twice, and what all
//! of it costs.

mod answers;
mod budget;
mod crashes;
mod owners;
mod process;
mod producing;
mod recovering;
