// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package exe provides tests with the programs that they run: programs of this module, which it builds as for
// a release, programs of Debian packages, and programs of other projects that hack/setup.sh installs.
package exe
