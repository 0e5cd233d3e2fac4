// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package upgrade holds what is here to what was released. testdata has, for each release, its
// CRDs and objects of its operator in every state that they can be in; `make freeze
// VERSION=v0.2.0` makes a release's. Its tests upgrade from each of them, with machines that
// run, and compare the schemas: what takes something away from users has to stand in
// testdata/allowed.yaml, with its reason.
package upgrade
