// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package giteatest starts simulated servers of Gitea and Forgejo, and their stand-in
// runners, for tests.
package giteatest
