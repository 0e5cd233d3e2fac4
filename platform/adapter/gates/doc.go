// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gates decides what happens to one object in one event. It is pure: what was
// found and what the gates' expressions gave goes in, the actions come out.
//
//	discover -> detach -> delete -> (stale event?) -> when -> recreate -> patch
//	         -> apply.when -> apply by generation -> prune
//
// The decision tree is data. [Decide] walks it and [Diagram] draws it, so that the guide
// shows what the program does. The rules behind it:
//
//   - Detach wins over delete, and a false when blocks neither.
//   - A gate that errors is never false: nothing is written, and the resource fails.
//   - A gate that is not reached does not matter, whatever it gave. Recreate and patch are
//     about objects that are there, and are not reached where there is none.
//   - Detached objects are left alone for good; strangers' objects are never written.
//   - An event that is older than the object changes nothing. It may still detach and
//     delete: that a resource is to go is read from the API, where it is never undone.
package gates
