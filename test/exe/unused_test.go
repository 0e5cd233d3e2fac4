// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package exe_test

import (
	"bytes"
	"os"
	"reflect"
	"runtime"
	"testing"

	"github.com/google/go-github/v88/github"

	"github.com/hyperfleet/hyperfleet/test/exe"
)

// Programs have no code that nothing calls (ADR 0057). The linker can't tell as soon as anything
// calls methods by names that are known at run time, and keeps every method then: half as much
// program again, which is read into memory at start.
func TestUnusedCodeIsLeftOut(t *testing.T) {
	t.Parallel()

	nameOf := func(function any) []byte {
		return []byte(runtime.FuncForPC(reflect.ValueOf(function).Pointer()).Name())
	}
	// Both are methods of what the operator has: one it calls, the other nobody does.
	used, unused := nameOf((*github.Client).NewRequest), nameOf((*github.ActionsService).GetWorkflowByID)

	program, err := os.ReadFile(exe.Build(t, "cmd/hyperfleet"))
	if err != nil {
		t.Fatal(err)
	}

	if !bytes.Contains(program, used) {
		t.Fatalf("the program does not name %s: nothing can be seen", used)
	}

	if bytes.Contains(program, unused) {
		t.Errorf("the program has %s, which nothing calls. Who has the linker keep it is in what "+
			"`go build -tags grpcnotrace -o /dev/null -ldflags=-dumpdep ./cmd/hyperfleet 2>&1 | grep ReflectMethod` "+
			"names: text/template and html/template mostly, in whose place github.com/DataDog/datadog-agent/pkg/template is used", unused)
	}
}
