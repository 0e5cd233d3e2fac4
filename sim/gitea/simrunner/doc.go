// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simrunner is a stand-in for the runner programs of Gitea and Forgejo:
// `act_runner daemon` in a folder with the settings of an ephemeral runner, and
// `forgejo-runner one-job`, against a simulated server (package sim/gitea). It takes the
// options and files of the real ones, makes their calls, in the JSON form of the Connect
// protocol, and prints their lines. Of a job it runs the scripts in the machine itself,
// which is what the label suffix :host means. It is small and starts fast, for it runs once
// per simulated job; it imports the standard library only.
package simrunner
