// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ignition makes what a DPU is installed with: out of the ignition that HyperShift
// serves to workers, the DPU's flavor and the image of its system. Template is pure; Client
// asks HyperShift's server.
//
// A DPU first boots a live system with the ignition that DPF hands it. That one installs the
// system on the DPU's disk, with the worker's ignition, which it carries in a file, and
// restarts. DPF fills the templates in it for each DPU.
package ignition
