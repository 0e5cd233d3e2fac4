// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conditions makes the conditions of a resource out of the reports of its adapters.
// It is pure: the same input gives the same conditions, whenever and in whatever order the
// reports came, and no clock is read.
//
//	report ──Discard?──► statuses ──Aggregate──► Reconciled, LastKnownReconciled,
//	                                             <Adapter>Successful, mapped conditions
//
// # Reconciled
//
// True if the kind has required adapters and each of them has reported at the resource's
// current generation Available=True, or Finalized=True while the resource is being deleted;
// and no child is left while it is being deleted, also none that is being deleted itself;
// and no reference lost its target. Otherwise it is False, with the reason that comes first
// of: ReferenceMissing, ReconciledMissingAdapters (one of them did not report at this
// generation), ReconciledFailedAdapters (one reported something else),
// ReconciledWaitingForChildren.
//
// It is there from the creation of the resource on.
//
// Its observed_generation is the newest generation that a required adapter has reported:
// 0 until the first report, below the resource's generation from a change until the first
// report on it, and equal to it wherever the condition is True. So the rules "new" and
// "generation > observed_generation" of Sentinel hold exactly while no adapter has
// reacted.
//
// Its last_updated_time is that of the oldest report at the current generation, else that
// of the resource. Its last_transition_time is that of the newest thing that it stands on.
//
// A kind without required adapters has nothing to reconcile and no Reconciled, except
// while something is in its way: it waits for children, or misses a reference.
//
// # LastKnownReconciled
//
// True once all required adapters were Available=True at one generation, which is its
// observed_generation; it stays so while they go on to the next one, at different times.
// It becomes False when an adapter reports a failure at that generation, or all of them
// have reported at another one and one of them a failure.
//
// # Unknown
//
// A report with Available=Unknown says that the adapter has not got to know yet. It is kept
// if it is the adapter's first, and counts as no report.
package conditions
