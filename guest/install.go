// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// Bounds of a download.
const (
	maxDownload     = 2 << 30
	downloadTries   = 6
	downloadPause   = time.Second
	downloadTimeout = 30 * time.Minute
	// stallTimeout ends a try that brings nothing.
	stallTimeout     = time.Minute
	progressInterval = 10 * time.Second
)

// install makes sure that the runner is where it should be.
func (s *Service) install(ctx context.Context, cfg *guest.Config) error {
	program := platformOf(cfg.Platform).program(cfg)
	if program == "" {
		return nil
	}

	dir, script := s.path(cfg.Runner.InstallPath), s.path(program)

	if info, err := os.Stat(script); err == nil && info.Mode().IsRegular() {
		return nil
	}

	switch {
	case cfg.Runner.Program != "":
		return failed(guest.ReasonDownloadFailed, "the image holds no %s: install the runner in it, or fix the template's program",
			program)
	case cfg.Runner.DownloadURL == "":
		return failed(guest.ReasonDownloadFailed, "the image holds no runner at %s, and no download_url is given",
			cfg.Runner.InstallPath)
	case cfg.Runner.DownloadSHA256 == "":
		return failed(guest.ReasonDownloadFailed, "runner.download_sha256 is missing: without it nothing is downloaded")
	}

	s.report.report(guest.PhaseDownloading, "runner from "+cfg.Runner.DownloadURL)

	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the runner's user must enter it
		return failed(guest.ReasonDownloadFailed, "make install path: %w", err)
	}

	file, err := s.download(ctx, cfg, filepath.Dir(dir))
	if err != nil {
		return failed(guest.ReasonDownloadFailed, "download runner: %w", err)
	}

	defer s.remove(file)

	if err := Extract(file, dir); err != nil {
		return failed(guest.ReasonDownloadFailed, "unpack runner: %w", err)
	}

	if _, err := os.Stat(script); err != nil {
		return failed(guest.ReasonDownloadFailed, "the download does not hold %s", cfg.Runner.RunScript)
	}

	return nil
}

// download fetches the runner into a new file in dir and checks what it is.
func (s *Service) download(ctx context.Context, cfg *guest.Config, dir string) (file string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, downloadTimeout, errors.New("it took more than "+downloadTimeout.String()))
	defer cancel()

	f, err := os.CreateTemp(dir, ".runner-download-*")
	if err != nil {
		return "", fmt.Errorf("make file: %w", err)
	}

	defer func() {
		_ = f.Close()

		if err != nil {
			s.remove(f.Name())
		}
	}()

	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
	}

	defer transport.CloseIdleConnections()

	d := &fetch{
		service: s, client: &http.Client{Transport: transport}, url: cfg.Runner.DownloadURL, file: f, sum: sha256.New(),
		progress: progress{began: s.clock.Now(), last: s.clock.Now()},
	}
	if err := d.all(ctx); err != nil {
		return "", err
	}

	if got := hex.EncodeToString(d.sum.Sum(nil)); !strings.EqualFold(got, cfg.Runner.DownloadSHA256) {
		return "", fmt.Errorf("the SHA-256 is %s, expected %s: fix runner.download_sha256, or the file was changed",
			got, cfg.Runner.DownloadSHA256)
	}

	return f.Name(), nil
}

// fetch is one download over several tries; each goes on where the last one broke off.
type fetch struct {
	service *Service
	client  *http.Client
	url     string
	file    *os.File
	sum     hash.Hash
	got     int64
	total   int64 // -1 if not known
	etag    string

	progress progress
}

// errPermanent marks answers that another try does not change.
var errPermanent = errors.New("not retried")

func (d *fetch) all(ctx context.Context) error {
	wait := downloadPause

	for try := 1; ; try++ {
		err := d.once(ctx)
		if err == nil {
			return nil
		}

		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		if errors.Is(err, errPermanent) || try == downloadTries {
			return fmt.Errorf("after %d tries and %d bytes: %w", try, d.got, err)
		}

		d.service.log.Warn("the download broke off, it goes on in a moment", "try", try, "bytes", d.got, "error", err.Error())

		if err := pause(ctx, d.service.clock, wait); err != nil {
			return err
		}

		wait *= 2
	}
}

func (d *fetch) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url, http.NoBody)
	if err != nil {
		return fmt.Errorf("make request: %w (%w)", err, errPermanent)
	}

	if d.got > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(d.got, 10)+"-")

		if d.etag != "" {
			req.Header.Set("If-Range", d.etag)
		}
	}

	resp, err := d.client.Do(req)
	if err != nil {
		return fmt.Errorf("ask for it: %w", err)
	}

	defer func() { _ = resp.Body.Close() }()

	if err := d.accept(resp); err != nil {
		return err
	}

	return d.copy(cancel, resp.Body)
}

// accept decides by the answer's head whether to go on, begin again, or give up.
func (d *fetch) accept(resp *http.Response) error {
	switch code := resp.StatusCode; {
	case code == http.StatusPartialContent && d.got > 0 &&
		strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(d.got, 10)+"-"):
		return nil
	case code == http.StatusOK:
		if err := d.restart(); err != nil {
			return err
		}

		d.total, d.etag = resp.ContentLength, resp.Header.Get("ETag")
		if strings.HasPrefix(d.etag, "W/") {
			d.etag = ""
		}

		if d.total > maxDownload {
			return fmt.Errorf("it has %d bytes, more than the %d allowed (%w)", d.total, int64(maxDownload), errPermanent)
		}

		return nil
	case code == http.StatusRequestedRangeNotSatisfiable, code == http.StatusPartialContent:
		return errors.Join(fmt.Errorf("the server answered %s", resp.Status), d.restart())
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		return fmt.Errorf("the server answered %s", resp.Status)
	default:
		return fmt.Errorf("the server answered %s (%w)", resp.Status, errPermanent)
	}
}

// restart forgets what came so far.
func (d *fetch) restart() error {
	d.got = 0
	d.sum.Reset()

	if err := d.file.Truncate(0); err != nil {
		return fmt.Errorf("empty file: %w", err)
	}

	if _, err := d.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("rewind file: %w", err)
	}

	return nil
}

// copy takes the body; a body that stands still for too long is given up.
func (d *fetch) copy(cancel context.CancelFunc, body io.Reader) error {
	stall := time.AfterFunc(stallTimeout, cancel)
	defer stall.Stop()

	buf := make([]byte, 128<<10)

	for {
		n, err := body.Read(buf)
		if n > 0 {
			stall.Reset(stallTimeout)

			if _, werr := d.file.Write(buf[:n]); werr != nil {
				return fmt.Errorf("write file: %w (%w)", werr, errPermanent)
			}

			_, _ = d.sum.Write(buf[:n])
			d.got += int64(n)

			d.progress.tell(d.service, d.got, d.total)

			if d.got > maxDownload {
				return fmt.Errorf("it has more than the %d bytes allowed (%w)", int64(maxDownload), errPermanent)
			}
		}

		switch {
		case errors.Is(err, io.EOF) && d.total >= 0 && d.got < d.total:
			return io.ErrUnexpectedEOF
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read it: %w", err)
		}
	}
}

// progress tells how far a download is: every tenth, and every few seconds.
type progress struct {
	began, last time.Time
	tenth       int64
}

func (p *progress) tell(s *Service, got, total int64) {
	now := s.clock.Now()
	tenth := int64(0)

	if total > 0 {
		tenth = got * 10 / total
	}

	if tenth == p.tenth && now.Sub(p.last) < progressInterval {
		return
	}

	p.last, p.tenth = now, tenth
	attrs := []any{"bytes", got}

	if total > 0 {
		attrs = append(attrs, "percent", got*100/total)
	}

	if passed := now.Sub(p.began); passed > 0 {
		attrs = append(attrs, "bytesPerSecond", int64(float64(got)/passed.Seconds()))
	}

	s.log.Info("hyperfleet: downloading the runner", attrs...)
}
