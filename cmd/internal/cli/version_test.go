// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
)

func TestVersion(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		args    []string
		isJSON  bool
		want    string
		wantErr string
	}{
		"text is the default": {args: []string{"version"}, want: version.Read().String() + "\n"},
		"a flag, in one line": {args: []string{"--version"}, want: "program version " + version.Read().Version + "\n"},
		"json is one object":  {args: []string{"version", "--output", "json"}, isJSON: true},
		"another output is none": {
			args: []string{"version", "--output", "xml"}, wantErr: `print version: unknown output "xml": use text or json`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var out bytes.Buffer

			root := &cobra.Command{Use: "program", SilenceUsage: true, SilenceErrors: true}
			cli.AddVersion(root)
			root.SetOut(&out)
			root.SetArgs(tt.args)

			err := root.Execute()

			switch {
			case tt.wantErr != "":
				if err == nil || err.Error() != tt.wantErr {
					t.Errorf("error %v, want %q", err, tt.wantErr)
				}
			case tt.isJSON:
				var info version.Info
				if err := json.Unmarshal(out.Bytes(), &info); err != nil || info != version.Read() {
					t.Errorf("got %s (%v), want %+v", out.Bytes(), err, version.Read())
				}
			case err != nil || out.String() != tt.want:
				t.Errorf("got %q (%v), want %q", out.String(), err, tt.want)
			}
		})
	}
}
