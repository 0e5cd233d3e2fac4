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
	// fuzzAtOnce is how many targets share the cores: each has its time by the clock.
	fuzzAtOnce = 12
	// fuzzEnd is how long a target may take to end after its time.
	fuzzEnd = time.Minute
)

// target is a fuzz test.
type target struct{ dir, name string }

// fuzzing runs fuzz targets.
type fuzzing struct {
	out  io.Writer
	dir  string
	each time.Duration

	mu           sync.Mutex
	done, failed int
}

var fuzzFunction = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\)`)

// all fuzzes every target of the packages, and says whether none has found anything.
func (f *fuzzing) all(ctx context.Context, packages []string) (bool, error) {
	targets, err := f.targets(ctx, packages)
	if err != nil {
		return false, err
	}

	work, err := os.MkdirTemp("", "hf-fuzz-")
	if err != nil {
		return false, fmt.Errorf("fuzz: %w", err)
	}
	defer os.RemoveAll(work) //nolint:errcheck // it is the system's to clean up then

	programs, err := f.build(ctx, work, targets)
	if err != nil {
		return false, err
	}

	var (
		slots = make(chan struct{}, fuzzAtOnce)
		all   sync.WaitGroup
	)

	for _, t := range targets {
		slots <- struct{}{}

		all.Go(func() {
			defer func() { <-slots }()

			f.one(ctx, programs[t.dir], work, t, len(targets))
		})
	}

	all.Wait()
	fmt.Fprintf(f.out, "%d passed, %d failed\n", f.done-f.failed, f.failed)

	return f.failed == 0 && f.done > 0, ctx.Err()
}

// targets finds the fuzz tests in the packages' sources.
func (f *fuzzing) targets(ctx context.Context, packages []string) ([]target, error) {
	const files = `{{$d := .Dir}}{{range .TestGoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}`

	list, err := output(ctx, f.dir, "go", append([]string{"list", "-f", files}, packages...)...)
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

// build makes the instrumented test programs, one for each package, two at a time: most of it
// is linking, which has one core to itself.
func (f *fuzzing) build(ctx context.Context, work string, targets []target) (map[string]string, error) {
	const atOnce = 2

	var builds errgroup.Group

	builds.SetLimit(atOnce)

	programs := map[string]string{}

	for _, t := range targets {
		if programs[t.dir] != "" {
			continue
		}

		program := filepath.Join(work, strconv.Itoa(len(programs))+".test")
		programs[t.dir] = program

		builds.Go(func() error {
			_, err := output(ctx, t.dir, "go", "test", "-c", "-vet=off", "-fuzz", ".", "-o", program, ".")
			if err == nil {
				fmt.Fprintf(f.out, "built %s\n", f.short(t.dir))
			}

			return err
		})
	}

	return programs, builds.Wait()
}

func (f *fuzzing) short(dir string) string {
	if path, err := filepath.Rel(f.dir, dir); err == nil {
		return path
	}

	return dir
}

// one fuzzes a target. What it finds lies in the package's testdata, as go test has it.
func (f *fuzzing) one(ctx context.Context, program, work string, t target, of int) {
	// The kernel ends the program with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	ctx, cancel := context.WithTimeout(ctx, f.each+fuzzEnd)
	defer cancel()

	var text bytes.Buffer

	cmd := exec.CommandContext(ctx, program, "-test.run", "^$", "-test.fuzz", "^"+t.name+"$", "-test.fuzztime", f.each.String(),
		"-test.parallel", "1", "-test.fuzzcachedir", filepath.Join(work, "cache", f.short(t.dir), t.name))
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.dir, &text, &text
	endWithParent(cmd)

	err := cmd.Run()

	f.mu.Lock()
	defer f.mu.Unlock()

	f.done++

	tries := "0"
	if found := regexp.MustCompile(`execs: (\d+)`).FindAllStringSubmatch(text.String(), -1); len(found) > 0 {
		tries = found[len(found)-1][1]
	}

	if err == nil {
		fmt.Fprintf(f.out, "ok    [%d/%d] %s %s: %s inputs\n", f.done, of, f.short(t.dir), t.name, tries)

		return
	}

	f.failed++

	fmt.Fprintf(f.out, "%sfail  [%d/%d] %s %s after %s inputs: %v\n", text.String(), f.done, of, f.short(t.dir), t.name, tries, err)
}
