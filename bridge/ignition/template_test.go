// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ignition_test

import (
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/bridge/ignition"
)

const worker = `{"ignition":{"version":"3.2.0"},"storage":{"files":[
	{"path":"/etc/ignition-machine-config-encapsulated.json","contents":{"source":"data:,%7B%22spec%22%3A%7B%22osImageURL%22%3A%22a+b%22%7D%7D"}}]}}`

func flavor(files ...any) map[string]any {
	return map[string]any{"kind": "DPUFlavor", "spec": map[string]any{"configFiles": files}}
}

// TestTemplateErrors checks that errors name the input that is not valid and do not contain its content,
// which has credentials.
func TestTemplateErrors(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		in   ignition.Inputs
		says string
	}{
		"no JSON":           {ignition.Inputs{Worker: []byte("secret")}, "HyperShift's ignition: it is not JSON"},
		"another version":   {ignition.Inputs{Worker: []byte(`{"ignition":{"version":"2.2.0"}}`)}, `version "2.2.0"`},
		"no machine config": {ignition.Inputs{Worker: []byte(`{"ignition":{"version":"3.2.0"}}`)}, "it has no file /etc/ignition-machine-config"},
		"no data URL": {
			ignition.Inputs{Worker: []byte(strings.Replace(worker, "data:,", "http://secret/", 1))}, "it is not a data URL",
		},
		"permissions": {
			ignition.Inputs{Worker: []byte(worker), Flavor: flavor(map[string]any{"path": "/a", "permissions": "rwx"})},
			`file /a: permissions "rwx" are not octal`,
		},
		"too large": {
			ignition.Inputs{Worker: []byte(worker), Live: make([]byte, 256<<10+1)}, "read live.ign: too large: it has 262145 bytes, and at most 262144 are allowed",
		},
		"additions": {ignition.Inputs{Worker: []byte(worker), Target: []byte(`{"ignition":{}}`)}, "parse target.ign"},
		"additions of the live system": {
			ignition.Inputs{Worker: []byte(worker), Live: []byte(`{"ignition":{"version":"3.4.0"},"systemd":{"units":[1]}}`)}, "parse live.ign: an entry of units",
		},
	} {
		_, err := ignition.BuildTemplate(tc.in)
		if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", name, err, tc.says)
		}
	}
}

// TestTemplateIsTheSame checks that the same inputs give the same text, so that nothing is written
// without a change.
func TestTemplateIsTheSame(t *testing.T) {
	t.Parallel()

	in := func() ignition.Inputs {
		return ignition.Inputs{Worker: []byte(worker), MachineOS: "image", Flavor: flavor(map[string]any{"path": "/a", "raw": "b"})}
	}

	first, err := ignition.BuildTemplate(in())
	if err != nil {
		t.Fatal(err)
	}

	if again, _ := ignition.BuildTemplate(in()); again != first || !strings.Contains(first, "{{.DPUHostName}}") {
		t.Errorf("first %s, then %s", first, again)
	}
}

// TestInstallerIsAScript checks that bash can parse the installer.
func TestInstallerIsAScript(t *testing.T) {
	t.Parallel()

	if out, err := exec.Command("bash", "-n", "files/install.sh").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestFetch checks that no request, and so no token, is sent if the user data has no CA bundle.
func TestFetch(t *testing.T) {
	t.Parallel()

	calls := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++

		http.Redirect(w, r, "https://127.0.0.1:1/", http.StatusFound)
	}))
	t.Cleanup(server.Close)

	client := &ignition.Client{Clock: clock.RealClock{}}

	_, err := client.Fetch(t.Context(), ignition.Source{URL: server.URL, Header: http.Header{"Authorization": {"Bearer secret"}}})
	if err == nil || !strings.Contains(err.Error(), "parse CA bundle of the server in the user data") || calls != 0 {
		t.Errorf("without an authority: %v", err)
	}
}

func FuzzTemplate(f *testing.F) {
	f.Add([]byte(worker), []byte(`{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/a"}]}}`))
	f.Add([]byte(`{"ignition":{"version":"3.2.0"},"storage":{"files":[null,1,{"path":{}}]}}`), []byte(`{}`))

	f.Fuzz(func(_ *testing.T, worker, more []byte) {
		_, _ = ignition.BuildTemplate(ignition.Inputs{Worker: worker, Target: more, Live: more})
		_, _ = ignition.ParseUserData(worker)
	})
}
