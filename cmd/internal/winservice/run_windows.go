// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package winservice

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows/svc"
)

// logFolder is the folder of the logs below the folder of programs' data.
const logFolder = "HyperFleet"

// Run runs a program. If the service manager has started it, the program is the service with the name, and its output
// goes to the file NAME.log.
func Run(name string, run Program) int {
	if isService, err := svc.IsWindowsService(); err != nil || !isService {
		return run(context.Background(), os.Stdout, os.Stderr)
	}

	log, err := openLog(name)
	if err != nil {
		log = os.Stderr
		_, _ = fmt.Fprintln(log, err)
	}

	handler := &service{run: run, log: log}
	if err := svc.Run(name, handler); err != nil {
		_, _ = fmt.Fprintf(log, "%s: run as a service: %v\n", name, err)

		return 1
	}

	return handler.code
}

// openLog opens the log of the service for appending.
func openLog(name string) (*os.File, error) {
	file := filepath.Join(os.Getenv("ProgramData"), logFolder, name+".log")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, fmt.Errorf("create folder of the log: %w", err)
	}

	return os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
}

// service is a program as a Windows service.
type service struct {
	run  Program
	log  io.Writer
	code int
}

// Execute runs the program until it ends, or until the service manager stops the service.
func (s *service) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (bool, uint32) {
	const accepted = svc.AcceptStop | svc.AcceptShutdown

	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	done := make(chan int, 1)

	go func() { done <- s.run(ctx, s.log, s.log) }()

	status <- svc.Status{State: svc.Running, Accepts: accepted}

	for {
		select {
		case s.code = <-done:
			return false, 0
		case request := <-requests:
			switch request.Cmd {
			case svc.Interrogate:
				status <- request.CurrentStatus
			case svc.Stop, svc.Shutdown:
				status <- svc.Status{State: svc.StopPending}

				stop()
			default:
			}
		}
	}
}
