module github.com/kith/kith/e2e/browser

go 1.27.0

toolchain go1.27.4

require (
	github.com/chromedp/cdproto v0.159.0
	github.com/chromedp/chromedp v0.22.1
	github.com/go-jose/go-jose/v4 v4.1.4
	github.com/kith/kith v0.0.0-00010101000000-000000000000
	github.com/makiuchi-d/gozxing v0.1.1
	golang.org/x/sync v0.24.0
)

require (
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3 // indirect
	github.com/google/go-cmp v0.7.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	golang.org/x/xerrors v0.0.0-20200804184101-5ec99f83aff1 // indirect
)

replace github.com/kith/kith => ../..
