// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package giteatest starts a simulated Gitea or Forgejo and its simulated runners for tests.
package giteatest
