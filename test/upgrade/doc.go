// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package upgrade tests the upgrade from each release to the current version. For each release, testdata
// contains its CRDs, and objects of its operator in all of their states. `make freeze VERSION=v0.2.0`
// creates the files of a release. The tests upgrade from each release while machines run, and compare the
// schemas of the CRDs. Each incompatible change must be listed with a reason in testdata/allowed.yaml.
package upgrade
