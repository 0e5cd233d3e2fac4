// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package windows tests the bootstrap service for Windows under Wine: the paths, the scripts, the medium with the
// configuration, the runner's processes in a job object, and the reports, with simulated runners of five platforms.
// A machine with Windows on a simulated Proxmox VE lives from the webhook of its job to its deletion. What Wine does not
// show is in docs/guides/windows.md: the service manager, the power-off by Windows, PowerShell and networks.
package windows
