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

// TestUnusedCodeIsLeftOut checks that programs have no methods that nothing calls (ADR 0057). If anything calls
// methods by names that are known only at run time, the linker keeps all methods, which makes the programs half as
// large again.
func TestUnusedCodeIsLeftOut(t *testing.T) {
	t.Parallel()

	nameOf := func(function any) []byte {
		return []byte(runtime.FuncForPC(reflect.ValueOf(function).Pointer()).Name())
	}

	// Both methods are of a type in the program. The program calls the first one, and nothing calls the second.
	for program, names := range map[string]struct{ used, unused []byte }{
		"cmd/hyperfleet":          {nameOf((*github.Client).NewRequest), nameOf((*github.ActionsService).GetWorkflowByID)},
		"cmd/hyperfleet-platform": {nameOf((*amqp.Channel).Qos), nameOf((*amqp.Channel).TxCommit)},
	} {
		built, err := os.ReadFile(exe.Build(t, program))
		if err != nil {
			t.Fatal(err)
		}

		if !bytes.Contains(built, names.used) {
			t.Fatalf("%s does not contain %s: the search does not work", program, names.used)
		}

		if bytes.Contains(built, names.unused) {
			t.Errorf("%s contains %s, which nothing calls. To find what makes the linker keep it, run "+
				"`go build -tags grpcnotrace -o /dev/null -ldflags=-dumpdep ./%[1]s 2>&1 | grep ReflectMethod` "+
				"and read the names. It is mostly text/template or html/template: use github.com/DataDog/datadog-agent/pkg/template instead",
				program, names.unused)
		}
	}
}
