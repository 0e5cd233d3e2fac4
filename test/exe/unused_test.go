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
	amqp "github.com/rabbitmq/amqp091-go"

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

	// Both are methods of what the program has: one it calls, the other nobody does.
	for program, names := range map[string]struct{ used, unused []byte }{
		"cmd/hyperfleet":          {nameOf((*github.Client).NewRequest), nameOf((*github.ActionsService).GetWorkflowByID)},
		"cmd/hyperfleet-platform": {nameOf((*amqp.Channel).Qos), nameOf((*amqp.Channel).TxCommit)},
	} {
		built, err := os.ReadFile(exe.Build(t, program))
		if err != nil {
			t.Fatal(err)
		}

		if !bytes.Contains(built, names.used) {
			t.Fatalf("%s does not name %s: nothing can be seen", program, names.used)
		}

		if bytes.Contains(built, names.unused) {
			t.Errorf("%s has %s, which nothing calls. Who has the linker keep it is in what "+
				"`go build -tags grpcnotrace -o /dev/null -ldflags=-dumpdep ./%[1]s 2>&1 | grep ReflectMethod` "+
				"names: text/template and html/template mostly, in whose place github.com/DataDog/datadog-agent/pkg/template is used",
				program, names.unused)
		}
	}
}
