// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

func TestNoAccountUnderAnotherRoot(t *testing.T) {
	t.Parallel()

	if a, err := New(Options{Root: t.TempDir()}).findAccount(); a != nil || err != nil {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestPowerOffIsLast: the machine powers off once, after the last report, also when its configuration is
// invalid.
func TestPowerOffIsLast(t *testing.T) {
	t.Parallel()

	for name, answer := range map[string]error{"works": nil, "fails": errors.New("no systemd")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir, calls := t.TempDir(), 0

			config := filepath.Join(dir, filepath.FromSlash(guest.ConfigPath))
			if err := errors.Join(os.MkdirAll(filepath.Dir(config), 0o755), os.WriteFile(config, nil, 0o600)); err != nil {
				t.Fatal(err)
			}

			var s *Service

			s = New(Options{Root: dir, PowerOff: func(context.Context) error {
				calls++

				if _, err := os.Stat(s.path(guest.StatusPath)); err != nil {
					t.Errorf("powered off before the last report: %v", err)
				}

				return answer
			}})

			if got := s.Run(t.Context()); got.Reason != guest.ReasonConfigInvalid || calls != 1 {
				t.Errorf("%+v, powered off %d times", got, calls)
			}
		})
	}
}
