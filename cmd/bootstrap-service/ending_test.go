// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/silence"
)

// TestProgramEnds checks that the program ends in time after SIGTERM while the operator does not answer, and while
// the runner does not stop.
func TestProgramEnds(t *testing.T) {
	t.Parallel()

	for name, runner := range map[string]string{
		"a silent operator":                       `echo "Listening for Jobs"; while :; do sleep 0.02; done`,
		"a silent operator and a stubborn runner": `trap '' INT TERM; echo "Listening for Jobs"; while :; do sleep 0.02; done`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			operator := silence.Listen(t)
			dir := createRoot(t, runner, strings.TrimSuffix(config, "}")+`,"report":{"url":"https://`+operator.Address+`/report","token":"x"}}`)

			process, err := procrun.Start(t.Context(), procrun.Spec{
				Path: program, Args: []string{"--root", dir}, LogPath: filepath.Join(t.TempDir(), "log"),
			})
			if err != nil {
				t.Fatal(err)
			}

			t.Cleanup(func() { _ = process.Kill() })

			waitForListening(t, dir)
			operator.WaitForConnection(t)
			silence.Stop(t, process)

			if !strings.Contains(process.LogTail(), "reason=Terminated") {
				t.Errorf("log:\n%s", process.LogTail())
			}
		})
	}
}
