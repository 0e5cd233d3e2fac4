// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package windows tests the bootstrap service for Windows under Wine: the paths, the scripts, the medium with the
// configuration, the runner's processes in a job object, and the reports. What Wine does not show is in
// docs/guides/windows.md: the service manager, the shutdown of the machine, TPMs and networks.
package windows
