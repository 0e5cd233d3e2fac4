// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scaleway simulates Scaleway's Apple silicon API (apple-silicon/v1alpha1) and the
// SSH keys of its IAM API (iam/v1alpha1), as scaleway-sdk-go calls them: paths, bodies and
// standard errors are those of the SDK's version in go.mod.
//
// A server takes its time by the given clock:
//
//	order --> starting --> ready (delivered) <--> rebooting, reinstalling
//	                                     \--> gone (deleted, or at deletable_at if scheduled)
//
// It gets the SSH keys that the project has when it is installed, and a new password. It
// can't be deleted before its least time is over, and while it works it takes no orders.
//
// A path that is not known is answered with 501 and is a violation, and so is a body with
// a field that the API does not have. The simulator has no package state and starts no
// goroutine: time is looked at when somebody calls.
package scaleway
