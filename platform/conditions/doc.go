// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conditions computes the conditions of a resource from the reports of its adapters.
// The package is pure: it reads no clock, and the same input gives the same conditions, no
// matter when and in which order the reports arrived.
//
//	report ──DiscardReason?──► statuses ──Aggregate──► Reconciled, LastKnownReconciled,
//	                                                   <Adapter>Successful, mapped conditions
//
// # Reconciled
//
// Reconciled is True if all of these hold:
//
//   - The kind has required adapters, and each of them has reported Available=True at the
//     resource's current generation. While the resource is being deleted, each of them has to
//     have reported Finalized=True instead.
//   - If the resource is being deleted, it has no children. Children that are being deleted
//     themselves count as well.
//   - Every reference has its target.
//
// Otherwise Reconciled is False. Its reason is the first of these that applies:
//
//   - ReferenceMissing: a reference lost its target.
//   - ReconciledMissingAdapters: a required adapter has not reported at this generation.
//   - ReconciledFailedAdapters: a required adapter has reported another status.
//   - ReconciledWaitingForChildren: the resource is being deleted and still has children.
//
// If the kind has required adapters, a resource has the condition Reconciled from its creation on.
//
// The observed_generation of Reconciled is the newest generation that a required adapter has
// reported. It is 0 until the first report. After a change it is lower than the resource's
// generation until an adapter reports on the change. It equals the resource's generation
// whenever the condition is True. So Sentinel's rules "new" and
// "generation > observed_generation" hold exactly as long as no adapter has reacted.
//
// The last_updated_time of Reconciled is the time of the oldest report at the current
// generation. If no adapter has reported at that generation, it is the resource's update time.
// The last_transition_time is the time of the newest report, reference or resource update that
// the status depends on.
//
// A kind without required adapters has nothing to reconcile. Its resources have the condition
// Reconciled only while they wait for children or miss the target of a reference.
//
// # LastKnownReconciled
//
// LastKnownReconciled becomes True when all required adapters have reported Available=True at
// one generation, which becomes its observed_generation. It stays True while the adapters move
// to the next generation at different times. It becomes False when an adapter reports a failure
// at the observed generation, or when all adapters have reported at another generation and at
// least one of them has failed.
//
// # Unknown
//
// A report with Available=Unknown says that the adapter does not know the state of the resource
// yet. Such a report is stored only if it is the adapter's first one, and Aggregate ignores it.
package conditions
