// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

func TestFindMachineConfig(t *testing.T) {
	t.Parallel()

	const file = "write_files:\n- {path: /other, content: a}\n- path: " + guest.ConfigPath + "\n  content: |\n    {}\n"

	for name, test := range map[string]struct{ in, want, err string }{
		"the file":      {in: "#cloud-config\n" + file, want: "{}\n"},
		"another file":  {in: "#cloud-config\nwrite_files: [{path: /other}]\n", err: "does not write " + guest.ConfigPath},
		"a script":      {in: "#!/bin/sh\n", err: "does not begin with #cloud-config"},
		"invalid":       {in: "#cloud-config\na: [swordfish\n", err: "not valid YAML"},
		"far too large": {in: "#cloud-config\n" + strings.Repeat("#", 5*MaxConfigBytes), err: "more than"},
	} {
		got, err := findMachineConfig([]byte(test.in))
		if string(got) != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %q, %v", name, got, err)
		}

		if err != nil && strings.Contains(err.Error(), "swordfish") {
			t.Errorf("%s: the error quotes the text: %v", name, err)
		}
	}
}
