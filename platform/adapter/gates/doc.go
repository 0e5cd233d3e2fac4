// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gates decides what the adapter does to one object in one event. The package is pure: its
// input is the state of the object and the values of the gates' expressions, and its output is a
// list of actions.
//
//	discover -> (detached? unproven?) -> detach -> delete -> (stale event?) -> when -> recreate -> patch
//	         -> apply.when -> apply by content -> prune
//
// The decision tree is data. [Decide] walks the tree, and a test draws the diagram of the guide from
// it, so that the guide shows what the program does. The tree follows these rules:
//
//   - Detach takes precedence over delete. A false when blocks neither of them.
//   - An error of a gate is not false. The resource fails and nothing is written.
//   - A gate that the tree does not reach has no effect, whatever its value. Recreate and patch
//     need an existing object and are not reached without one.
//   - The adapter never changes detached objects and unmanaged objects.
//   - A stale event is one whose generation is not that of the resource in the API. It never leads to an apply, patch,
//     recreate or prune. It can still detach and delete: the deletion of a resource is read from the API. The
//     generation of the object does not make an event stale, because it can be that of a database that was restored.
//   - A skip that the task file did not ask for never counts as success: an unexpectedly detached object and an
//     object with marks that prove nothing fail the entry, and a stale event reports nothing.
package gates
