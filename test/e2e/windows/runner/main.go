// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command runner is a stand-in for the runner of GitHub Actions on Windows. It prints the lines that the runner prints for
// one job, and leaves a process behind, as jobs do.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "leftover" {
		time.Sleep(time.Hour)

		return
	}

	fmt.Println("2026-01-02 03:04:05Z: Listening for Jobs")

	if err := exec.Command(os.Args[0], "leftover").Start(); err != nil { //nolint:noctx // it outlives this process
		fmt.Println("start leftover:", err)
		os.Exit(1)
	}

	fmt.Println("2026-01-02 03:04:05Z: Running job: build")
	fmt.Println("token", os.Getenv("ACTIONS_RUNNER_INPUT_JITCONFIG"), "in", os.Getenv("WORK_DRIVE"))

	if len(os.Args) > 1 && os.Args[1] == "hang" {
		time.Sleep(time.Hour)
	}

	fmt.Println("2026-01-02 03:04:05Z: Job build completed with result: Succeeded")
}
