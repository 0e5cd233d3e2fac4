// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// maxParallelFuzz is the number of targets that run at the same time. The time of a target is wall time.
	maxParallelFuzz = 12
	// fuzzGracePeriod is the time that a target may take to exit after its fuzzing time.
	fuzzGracePeriod = time.Minute
)

// target is a fuzz test.
type target struct{ dir, name string }

// fuzzer runs fuzz targets.
type fuzzer struct {
	out      io.Writer
	dir      string
	fuzzTime time.Duration

	mu           sync.Mutex
	done, failed int
}

var fuzzFunction = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\)`)

// runAll runs all fuzz targets of the packages. It returns true if there are targets and none of them failed.
func (f *fuzzer) runAll(ctx context.Context, packages []string) (hasPassed bool, err error) {
	targets, err := f.findTargets(ctx, packages)
	if err != nil {
		return false, err
	}

	work, err := os.MkdirTemp("", "hf-fuzz-")
	if err != nil {
		return false, fmt.Errorf("fuzz: %w", err)
	}
	defer os.RemoveAll(work) //nolint:errcheck // the folder is temporary

	programs, err := f.buildPrograms(ctx, work, targets)
	if err != nil {
		return false, err
	}

	var (
		slots = make(chan struct{}, maxParallelFuzz)
		group sync.WaitGroup
	)

	for _, t := range targets {
		slots <- struct{}{}

		group.Go(func() {
			defer func() { <-slots }()

			f.runTarget(ctx, programs[t.dir], work, t, len(targets))
		})
	}

	group.Wait()
	fmt.Fprintf(f.out, "%d passed, %d failed\n", f.done-f.failed, f.failed)

	return f.failed == 0 && f.done > 0, ctx.Err()
}

// findTargets finds the fuzz tests in the source files of the packages.
func (f *fuzzer) findTargets(ctx context.Context, packages []string) ([]target, error) {
	const files = `{{$d := .Dir}}{{range .TestGoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}`

	list, err := runCommand(ctx, f.dir, "go", append([]string{"list", "-f", files}, packages...)...)
	if err != nil {
		return nil, err
	}

	var out []target

	for file := range strings.FieldsSeq(list) {
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("find fuzz targets: %w", err)
		}

		for _, match := range fuzzFunction.FindAllSubmatch(source, -1) {
			out = append(out, target{dir: filepath.Dir(file), name: string(match[1])})
		}
	}

	return out, nil
}

// buildPrograms builds the instrumented test program of each package. It builds two programs at a time, because
// linking takes most of the time and uses only one core.
func (f *fuzzer) buildPrograms(ctx context.Context, work string, targets []target) (map[string]string, error) {
	const maxParallel = 2

	var builds errgroup.Group

	builds.SetLimit(maxParallel)

	programs := map[string]string{}

	for _, t := range targets {
		if programs[t.dir] != "" {
			continue
		}

		program := filepath.Join(work, strconv.Itoa(len(programs))+".test")
		programs[t.dir] = program

		builds.Go(func() error {
			_, err := runCommand(ctx, t.dir, "go", "test", "-c", "-vet=off", "-fuzz", ".", "-o", program, ".")
			if err == nil {
				fmt.Fprintf(f.out, "built %s\n", f.relativeDir(t.dir))
			}

			return err
		})
	}

	return programs, builds.Wait()
}

func (f *fuzzer) relativeDir(dir string) string {
	if path, err := filepath.Rel(f.dir, dir); err == nil {
		return path
	}

	return dir
}

// runTarget runs one fuzz target. Like go test, it writes failing inputs to testdata in the package.
func (f *fuzzer) runTarget(ctx context.Context, program, work string, t target, total int) {
	// The kernel kills the program when the thread that started it exits.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	ctx, cancel := context.WithTimeout(ctx, f.fuzzTime+fuzzGracePeriod)
	defer cancel()

	var text bytes.Buffer

	cmd := exec.CommandContext(ctx, program, "-test.run", "^$", "-test.fuzz", "^"+t.name+"$", "-test.fuzztime", f.fuzzTime.String(),
		"-test.parallel", "1", "-test.fuzzcachedir", filepath.Join(work, "cache", f.relativeDir(t.dir), t.name))
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.dir, &text, &text
	killWithParent(cmd)

	err := cmd.Run()

	f.mu.Lock()
	defer f.mu.Unlock()

	f.done++

	inputs := "0"
	if matches := regexp.MustCompile(`execs: (\d+)`).FindAllStringSubmatch(text.String(), -1); len(matches) > 0 {
		inputs = matches[len(matches)-1][1]
	}

	if err == nil {
		fmt.Fprintf(f.out, "ok    [%d/%d] %s %s: %s inputs\n", f.done, total, f.relativeDir(t.dir), t.name, inputs)

		return
	}

	f.failed++

	fmt.Fprintf(f.out, "%sfail  [%d/%d] %s %s after %s inputs: %v\n",
		text.String(), f.done, total, f.relativeDir(t.dir), t.name, inputs, err)
}
