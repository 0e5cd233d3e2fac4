// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package signals_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/hyperfleet/hyperfleet/cmd/internal/signals"
)

// asProgram makes the test binary a program that does not end when its context ends.
const asProgram = "HYPERFLEETTEST_SIGNALS"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}

	ctx, stop := signals.NotifyContext(nil) //nolint:staticcheck // nil is allowed
	defer stop()

	fmt.Println("runs")
	<-ctx.Done()

	for {
		fmt.Println("ends")

		if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
			return
		}
	}
}

// A second signal kills a program that does not end.
func TestSecondSignalKills(t *testing.T) {
	t.Parallel()

	program := exec.CommandContext(t.Context(), os.Args[0]) // #nosec G204 -- this test binary
	program.Env = append(os.Environ(), asProgram+"=1")

	input, errInput := program.StdinPipe()

	output, errOutput := program.StdoutPipe()
	if err := errors.Join(errInput, errOutput, program.Start()); err != nil {
		t.Fatal(err)
	}

	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if err := program.Process.Signal(syscall.SIGTERM); err != nil {
			break // it has ended
		}

		_, _ = input.Write([]byte("\n")) // print the next line, if the signal has not killed it
	}

	err := program.Wait()

	status, ok := program.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGTERM {
		t.Errorf("the program ended with %v, want SIGTERM to kill it", err)
	}
}
