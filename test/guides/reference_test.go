// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/cloudinit"
)

// TestCloudInitVariablesAreDocumented checks that every variable of cloud-init templates is on its page.
func TestCloudInitVariablesAreDocumented(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("../../docs/reference/cloud-init.md")
	if err != nil {
		t.Fatal(err)
	}

	for prefix, kind := range map[string]reflect.Type{
		".": reflect.TypeFor[cloudinit.Vars](), ".RunnerConfig.": reflect.TypeFor[cloudinit.RunnerConfig](),
	} {
		for field := range kind.Fields() {
			if name := prefix + field.Name; name != ".RunnerConfig" && !strings.Contains(string(page), "`"+name+"`") {
				t.Errorf("docs/reference/cloud-init.md does not have the variable %s", name)
			}
		}
	}
}
