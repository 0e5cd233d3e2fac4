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

// lookEvery is how often it is looked whether other files are mounted. Kubelet takes up to a
// minute or two to mount them.
const lookEvery = 2 * time.Second

// dataLink is the link that kubelet puts beside the files of a volume: it leads to the folder that
// has them, and is replaced when one of them changes.
const dataLink = "..data"

// Files are those in the folder of one file.
type Files struct {
	link, seen string
	read       func() error
}

// Beside looks which files are mounted in the folder of a file. It is called before the file is
// read; read reads it as the program does, and says what is wrong with it.
func Beside(file string, read func() error) *Files {
	f := &Files{link: filepath.Join(filepath.Dir(file), dataLink), read: read}
	f.seen, _ = os.Readlink(f.link) // there is none where nothing is mounted

	return f
}

// Until gives a context that ends when other files are mounted and nothing is wrong with them.
// What is wrong is logged, and the program goes on with what it has. The function that comes with
// the context ends it, and the looking.
func (f *Files) Until(ctx context.Context, log *slog.Logger) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)

	if f.seen != "" {
		go f.watch(ctx, cancel, log)
	}

	return ctx, cancel
}

func (f *Files) watch(ctx context.Context, end context.CancelFunc, log *slog.Logger) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}

		now, err := os.Readlink(f.link)
		if err != nil || now == f.seen {
			continue
		}

		f.seen = now

		if err := f.read(); err != nil {
			log.ErrorContext(ctx, "the configuration has changed and is invalid: the program goes on with the one it was "+
				"started with, and could not be started anew", "error", err)

			continue
		}

		log.InfoContext(ctx, "the configuration has changed: the program ends, to be started with the new one")
		end()

		return
	}
}
