// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mounted

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// pollInterval is the interval in which the mounted files are checked. The kubelet takes up to two
// minutes to mount changed files.
const pollInterval = 2 * time.Second

// dataLinkName is the name of the symbolic link that the kubelet creates in a volume. It points to
// the folder with the current files. The kubelet replaces it when one of the files changes.
const dataLinkName = "..data"

// Watcher watches the files in the folder of one file.
type Watcher struct {
	// linkPath is the path of the kubelet's symbolic link, and linkTarget its last known target.
	// linkTarget is empty if the files are not mounted by the kubelet.
	linkPath, linkTarget string
	validate             func() error
}

// NewWatcher returns a watcher for the folder of a file, and records which files are mounted now.
// Call it before the program reads the file. validate reads the file as the program does and
// returns an error if the file is invalid.
func NewWatcher(file string, validate func() error) *Watcher {
	w := &Watcher{linkPath: filepath.Join(filepath.Dir(file), dataLinkName), validate: validate}
	w.linkTarget, _ = os.Readlink(w.linkPath) // the link is missing if nothing is mounted

	return w
}

// CancelOnChange returns a context that ends when the kubelet has mounted changed files and the
// files are valid. If they are invalid, the error is logged and the program continues with its
// current configuration. The returned function ends the context and the watch. If the kubelet
// mounts no files in the folder, nothing is watched.
func (w *Watcher) CancelOnChange(ctx context.Context, log *slog.Logger) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)

	if w.linkTarget != "" {
		go w.watch(ctx, cancel, log)
	}

	return ctx, cancel
}

// watch polls the symbolic link ..data, which Kubernetes replaces when the mounted object changes. If the new
// configuration is valid, watch calls cancel, so that the program ends and is restarted, and returns. If it is
// invalid, watch logs this and continues.
func (w *Watcher) watch(ctx context.Context, cancel context.CancelFunc, log *slog.Logger) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}

		target, err := os.Readlink(w.linkPath)
		if err != nil || target == w.linkTarget {
			continue
		}

		w.linkTarget = target

		if err := w.validate(); err != nil {
			log.ErrorContext(ctx, "the changed configuration is invalid: the program continues with the configuration from "+
				"its start, and would fail if it were restarted", "error", err)

			continue
		}

		log.InfoContext(ctx, "the configuration has changed: the program stops, "+
			"to be restarted with the new configuration")
		cancel()

		return
	}
}
