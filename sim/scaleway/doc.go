// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scaleway simulates Scaleway's Apple silicon API (apple-silicon/v1alpha1) and the SSH keys
// of its IAM API (iam/v1alpha1), as scaleway-sdk-go calls them. Paths, bodies and standard errors
// are those of the SDK version in go.mod.
//
// A server changes its state over time, by the given clock:
//
//	order --> starting --> ready (delivered) <--> rebooting, reinstalling
//	                                     \--> gone (deleted, or at deletable_at if scheduled)
//
// Each installation gives the server a new password and the SSH keys that the project has at that
// time. A server can't be deleted before its minimum lease is over. While a server is rebooted or
// reinstalled, it refuses to be rebooted or reinstalled again.
//
// The simulator answers an unknown path with 501 and records a violation. A body with a field that
// the API does not have is a violation too. The simulator has no package state and starts no
// goroutine. It checks the time only during calls.
package scaleway
