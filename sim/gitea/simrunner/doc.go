// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simrunner simulates the runner programs of Gitea and Forgejo: `act_runner daemon` in a
// folder with the settings of an ephemeral runner, and `forgejo-runner one-job`. They run against a
// simulated server (package sim/gitea). The package accepts the options and files of the real
// programs, makes their calls in the JSON format of the Connect protocol, and prints their lines.
// It runs the scripts of a job directly on the machine, which is the meaning of the label suffix
// :host. The program is small and starts fast, because it runs once per simulated job. Apart from
// the YAML parser for its configuration, it imports only the standard library.
package simrunner
