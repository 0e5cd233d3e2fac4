// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mounted_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hyperfleet/hyperfleet/cmd/internal/mounted"
	"github.com/hyperfleet/hyperfleet/test/kubelet/volume"
)

var errTypo = errors.New(`unknown key "logs"`)

func TestChangedConfigurationEndsProgram(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	file := filepath.Join(dir, "operator.yaml")
	mount := func(text string) { volume.Mount(t, dir, map[string]string{"operator.yaml": text}) }

	mount("first")

	synctest.Test(t, func(t *testing.T) {
		var logs bytes.Buffer

		files := mounted.NewWatcher(file, func() error {
			if text, err := os.ReadFile(file); err != nil || string(text) == "typo" {
				return errors.Join(errTypo, err)
			}

			return nil
		})
		ctx, stop := files.CancelOnChange(t.Context(), slog.New(slog.NewTextHandler(&logs, nil)))
		defer stop()

		later := func() error {
			time.Sleep(time.Minute)
			synctest.Wait()

			return ctx.Err()
		}

		if later() != nil || logs.Len() > 0 {
			t.Fatalf("the program ended although nothing has changed: %s", &logs)
		}

		mount("typo")

		if later() != nil || strings.Count(logs.String(), "level=ERROR") != 1 || !strings.Contains(logs.String(), "unknown key") {
			t.Fatalf("an invalid configuration ended the program, or was not logged exactly once: %s", &logs)
		}

		mount("second")

		if later() == nil || !strings.Contains(logs.String(), "restarted with the new configuration") {
			t.Errorf("the program continued with the old configuration: %s", &logs)
		}
	})
}

// Files that are not mounted can be edited at any time, and no kubelet would restart the program.
func TestUnmountedFilesAreNotWatched(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "operator.yaml")

	synctest.Test(t, func(t *testing.T) {
		ctx, stop := mounted.NewWatcher(file, func() error { return nil }).CancelOnChange(t.Context(), slog.New(slog.DiscardHandler))

		if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}

		time.Sleep(time.Hour)

		if ctx.Err() != nil {
			t.Error("the program ended")
		}

		stop()

		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Error("it can't be ended")
		}
	})
}
