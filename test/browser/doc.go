// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package browser opens pages in a real browser without a screen, for tests.
package browser
