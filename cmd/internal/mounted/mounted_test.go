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

func TestAChangedConfigurationEndsTheProgram(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	file := filepath.Join(dir, "operator.yaml")
	mount := func(text string) { volume.Mount(t, dir, map[string]string{"operator.yaml": text}) }

	mount("first")

	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer

		files := mounted.NewWatcher(file, func() error {
			if text, err := os.ReadFile(file); err != nil || string(text) == "typo" {
				return errors.Join(errTypo, err)
			}

			return nil
		})
		ctx, stop := files.CancelOnChange(t.Context(), slog.New(slog.NewTextHandler(&said, nil)))
		defer stop()

		later := func() error {
			time.Sleep(time.Minute)
			synctest.Wait()

			return ctx.Err()
		}

		if later() != nil || said.Len() > 0 {
			t.Fatalf("it ends though nothing has changed: %s", &said)
		}

		mount("typo")

		if later() != nil || strings.Count(said.String(), "level=ERROR") != 1 || !strings.Contains(said.String(), "unknown key") {
			t.Fatalf("an invalid configuration ends it, or is not told of once: %s", &said)
		}

		mount("second")

		if later() == nil || !strings.Contains(said.String(), "restarted with the new configuration") {
			t.Errorf("it goes on with the old configuration: %s", &said)
		}
	})
}

// Files that are not mounted can be edited at any time, and no kubelet would restart the program.
func TestFilesThatNobodyMountsAreLeftAlone(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "operator.yaml")

	synctest.Test(t, func(t *testing.T) {
		ctx, stop := mounted.NewWatcher(file, func() error { return nil }).CancelOnChange(t.Context(), slog.New(slog.DiscardHandler))

		if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}

		time.Sleep(time.Hour)

		if ctx.Err() != nil {
			t.Error("it ends")
		}

		stop()

		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Error("it can't be ended")
		}
	})
}
