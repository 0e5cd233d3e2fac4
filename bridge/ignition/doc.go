// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ignition builds the configuration that a DPU is installed with. The inputs are the ignition
// that HyperShift serves to workers, the DPU's flavor and the image of its operating system.
// BuildTemplate is pure. Client fetches the ignition from HyperShift's server.
//
// A DPU first boots a live system with the ignition that DPF passes to it. The live system writes the
// operating system to the DPU's disk, together with the worker's ignition, which the live system's
// ignition contains as a file. Then the live system restarts the DPU. DPF renders the templates in the
// ignition for each DPU.
package ignition
