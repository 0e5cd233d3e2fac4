// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package browser opens pages in a real headless browser for tests.
package browser
